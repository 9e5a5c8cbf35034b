// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"github.com/google/uuid"
)

// A field is one parameter a method knows, and where its value goes.
type field struct {
	name     string
	required bool
	set      func(json.RawMessage) error
}

func required(name string, set func(json.RawMessage) error) field { return field{name, true, set} }
func optional(name string, set func(json.RawMessage) error) field { return field{name, false, set} }

var errParams = errors.New("parameters do not fit")

// An unknownFieldError is a parameter that the method does not have.
type unknownFieldError string

func (f unknownFieldError) Error() string { return fmt.Sprintf("unknown %q", string(f)) }

// decodeObject fills fields from a JSON object. As in SPDK a missing required field, a field given twice and a value
// of the wrong type are errors; an unknown field is one only when strict. Valid fields are filled even then.
func decodeObject(raw json.RawMessage, strict bool, fields ...field) error {
	members, err := objectMembers(raw)
	if err != nil {
		return err
	}
	var bad error
	seen := make(map[string]bool, len(members))
	for _, m := range members {
		f, known := findField(fields, m.name)
		switch {
		case !known && strict:
			bad = errors.Join(bad, unknownFieldError(m.name))
		case !known:
		case seen[m.name]:
			bad = errors.Join(bad, fmt.Errorf("%w: %q given twice", errParams, m.name))
		default:
			seen[m.name] = true
			if err := f.set(m.value); err != nil {
				bad = errors.Join(bad, fmt.Errorf("%w: %q: %w", errParams, m.name, err))
			}
		}
	}
	for _, f := range fields {
		if f.required && !seen[f.name] {
			bad = errors.Join(bad, fmt.Errorf("%w: %q is missing", errParams, f.name))
		}
	}
	return bad
}

func findField(fields []field, name string) (field, bool) {
	for _, f := range fields {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

type member struct {
	name  string
	value json.RawMessage
}

// objectMembers keeps the order and the duplicates that a map would lose.
func objectMembers(raw json.RawMessage) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%w: not an object", errParams)
	}
	var members []member
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errParams, err)
		}
		name, _ := t.(string)
		m := member{name: name}
		if err := dec.Decode(&m.value); err != nil {
			return nil, fmt.Errorf("%w: %w", errParams, err)
		}
		members = append(members, m)
	}
	return members, nil
}

func asString(dst *string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if len(raw) == 0 || raw[0] != '"' {
			return errors.New("not a string")
		}
		return json.Unmarshal(raw, dst)
	}
}

func asStrings(dst *[]string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var list []json.RawMessage
		if len(raw) == 0 || raw[0] != '[' {
			return errors.New("not a list")
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		*dst = make([]string, len(list))
		for i, item := range list {
			if err := asString(&(*dst)[i])(item); err != nil {
				return err
			}
		}
		return nil
	}
}

func asBool(dst *bool) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		switch string(raw) {
		case "true":
			*dst = true
		case "false":
			*dst = false
		default:
			return errors.New("not a boolean")
		}
		return nil
	}
}

// asUint reads a whole number that fits T. Like SPDK it takes 1e3 and 5.0 for the whole numbers they are.
func asUint[T uint8 | uint16 | uint32 | uint64](dst *T) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		n, err := strconv.ParseUint(string(raw), 10, 64)
		if err != nil {
			if !bytes.ContainsAny(raw, ".eE") || len(raw) > 32 || raw[0] == '"' {
				return errors.New("not a whole number")
			}
			rat, ok := new(big.Rat).SetString(string(raw))
			if !ok || !rat.IsInt() || !rat.Num().IsUint64() {
				return errors.New("not a whole number")
			}
			n = rat.Num().Uint64()
		}
		if uint64(T(n)) != n {
			return errors.New("too large")
		}
		*dst = T(n)
		return nil
	}
}

func asInt32(dst *int32) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		n, err := strconv.ParseInt(string(raw), 10, 32)
		if err != nil {
			return err
		}
		*dst = int32(n)
		return nil
	}
}

// asGiven is for optional parameters whose absence means something else than their zero value.
func asGiven(given *bool, set func(json.RawMessage) error) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		*given = true
		return set(raw)
	}
}

func asObject(strict bool, fields ...field) func(json.RawMessage) error {
	return func(raw json.RawMessage) error { return decodeObject(raw, strict, fields...) }
}

func asUUID(dst *string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var s string
		if err := asString(&s)(raw); err != nil {
			return err
		}
		id, err := uuid.Parse(s)
		if err != nil {
			return err
		}
		*dst = id.String()
		return nil
	}
}

// asHex reads exactly n bytes in hex, of either case, and keeps them in upper case, as SPDK shows them.
func asHex(n int, dst *string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var s string
		if err := asString(&s)(raw); err != nil {
			return err
		}
		b, err := hex.DecodeString(s)
		if err != nil || len(b) != n {
			return fmt.Errorf("not %d bytes in hex", n)
		}
		*dst = fmt.Sprintf("%X", b)
		return nil
	}
}

// asOneOf reads one of a fixed list of names.
func asOneOf(dst *string, names ...string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var s string
		if err := asString(&s)(raw); err != nil {
			return err
		}
		for _, n := range names {
			if s == n {
				*dst = s
				return nil
			}
		}
		return fmt.Errorf("%q is not one of %q", s, names)
	}
}

// asSomeOf reads a list of some of a fixed list of names, and keeps them in the fixed order, as a bit mask would.
func asSomeOf(dst *[]string, names ...string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var given []string
		if err := asStrings(&given)(raw); err != nil {
			return err
		}
		chosen := []string{}
		for _, n := range names {
			for _, g := range given {
				if g == n {
					chosen = append(chosen, n)
					break
				}
			}
		}
		for _, g := range given {
			if err := asOneOf(new(string), names...)(json.RawMessage(strconv.Quote(g))); err != nil {
				return err
			}
		}
		*dst = chosen
		return nil
	}
}
