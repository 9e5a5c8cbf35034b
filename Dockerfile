# SPDX-License-Identifier: Apache-2.0
#
# One image for all of weft's processes. The binaries are built outside, by
# `make binaries`, into bin/<arch>/: Go cross-compiles, so that no builder has
# to emulate another machine, and one cache serves tests and images alike.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --target weft .
#   buildah bud --isolation chroot --build-arg TARGETARCH=amd64 --target weft .

ARG BASE=docker.io/library/debian:trixie-slim

FROM ${BASE} AS weft

# The node plugin formats, checks, grows and mounts filesystems; the agent reads
# signatures, loops files and loads kernel modules. A base that has all of it is
# left alone, so that one made locally needs no network.
RUN set -eu; \
    missing=; \
    for command in mount umount blkid blockdev lsblk losetup wipefs mkfs.ext4 fsck.ext4 resize2fs \
                   mkfs.xfs xfs_repair xfs_growfs modprobe; do \
      command -v "$command" >/dev/null || missing="$missing $command"; \
    done; \
    if [ -n "$missing" ]; then \
      echo "the base lacks:$missing"; \
      apt-get update; \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        e2fsprogs kmod mount util-linux xfsprogs; \
      rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log; \
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
