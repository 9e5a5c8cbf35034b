# SPDX-License-Identifier: Apache-2.0
#
# Two images: `weft` for all of weft's processes, and `weft-target` for the pods
# in which SPDK runs. The binaries are built outside, by
# `make binaries`, into bin/<arch>/: Go cross-compiles, so that no builder has
# to emulate another machine, and one cache serves tests and images alike.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --target weft .
#   buildah bud --isolation chroot --build-arg TARGETARCH=amd64 --target weft .
#
# The second one takes SPDK from its base: see TARGET_BASE below.

ARG BASE=docker.io/library/debian:trixie-slim

# SPDK's nvmf_tgt comes from TARGET_BASE. An image that has it in PATH is left as
# it is but for weft-launch:
#
#   docker buildx build --target weft-target --build-arg TARGET_BASE=registry.example/spdk:26.05 .
#
# Such an image needs a shell, and util-linux's blkid when drives are to be taken from the kernel
# (devices.driver: VFIO or UIO): what is on a drive that cannot be looked at is unknown, and such a drive is refused.
#
# A site that has an nvmf_tgt, but no image of it, needs neither this file nor Docker, and gets labels that say what its
# SPDK can do: make image-target NVMF_TGT=/path/to/nvmf_tgt (docs/tasks/bring-your-own-spdk.md).
#
# The default gets Alpine's package, the only one among the distributions looked at that weft can use: SPDK 25.05 over
# TCP with posix sockets, without RDMA. docs/reference/spdk-features.md has what was looked at, and when.
ARG TARGET_BASE=docker.io/library/alpine:3.24

FROM ${BASE} AS weft

# The node plugin formats, checks, grows and mounts filesystems, encrypts, and makes mirrors;
# the agent reads signatures, loops files and loads kernel modules. A base that has all of it is
# left alone, so that one made locally needs no network.
RUN set -eu; \
    missing=; \
    for command in mount umount blkid blockdev lsblk losetup wipefs mkfs.ext4 fsck.ext4 resize2fs \
                   mkfs.xfs xfs_repair xfs_growfs modprobe mdadm cryptsetup dmesg; do \
      command -v "$command" >/dev/null || missing="$missing $command"; \
    done; \
    if [ -n "$missing" ]; then \
      echo "the base lacks:$missing"; \
      apt-get update; \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        cryptsetup-bin e2fsprogs kmod mdadm mount util-linux xfsprogs; \
      rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log; \
      # Loading md_mod from here must not change how the host starts its own arrays.
      rm -f /etc/modprobe.d/mdadm.conf; \
    fi

ARG TARGETARCH
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weft" \
      org.opencontainers.image.description="Operator, node agent and CSI driver for NVMe over Fabrics" \
      org.opencontainers.image.source="https://github.com/weft-storage/weft" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

COPY bin/${TARGETARCH}/weft-operator bin/${TARGETARCH}/weft-agent bin/${TARGETARCH}/weft-csi /usr/local/bin/

# The operator and the CSI controller need no rights; the chart gives root only
# to the two processes that work on a node's kernel.
USER 65532:65532

# Everything but weft-launch: what a release takes as its TARGET_BASE.
FROM ${TARGET_BASE} AS weft-target-base

# As root: it binds drives, locks memory and opens devices.
USER 0:0

# DPDK reads CPUs and memory from /sys and /proc by itself; weft-launch runs blkid, and busybox's
# does not know the options. A base that has both is left alone.
RUN set -eu; \
    missing=; \
    command -v nvmf_tgt >/dev/null || missing="$missing spdk"; \
    blkid --version 2>&1 | grep -q util-linux || missing="$missing blkid"; \
    if [ -n "$missing" ] && command -v apk >/dev/null; then \
      apk add --no-cache $missing; \
    fi; \
    command -v nvmf_tgt || { echo "TARGET_BASE has no nvmf_tgt in PATH; give an image that has, or an Alpine release whose community repository has spdk" >&2; exit 1; }

FROM weft-target-base AS weft-target

ARG TARGETARCH
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weft-target" \
      org.opencontainers.image.description="SPDK's NVMe-oF target, started by weft" \
      org.opencontainers.image.source="https://github.com/weft-storage/weft" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

COPY bin/${TARGETARCH}/weft-launch /usr/local/bin/

ENTRYPOINT ["/usr/local/bin/weft-launch"]
CMD ["--help"]
