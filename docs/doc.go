// SPDX-License-Identifier: Apache-2.0

// Package docs is the documents for users. Its tests hold them to the code and to each other.
package docs
