#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Keeps of the extracted packages what a container needs. $1 is the root filesystem.
set -eu
cd "$1"

# Which packages there are, where scanners look for it in an image without a package manager. Those that only xfs_scrub,
# debconf, PAM's setup and what mdadm does beside its program need are taken out again, and not listed.
mkdir -p var/lib/dpkg/status.d
for deb in var/cache/apt/archives/*.deb; do
  name=$(dpkg-deb --field "$deb" Package)
  case $name in
  debconf | dpkg | libapparmor1 | libdb5.* | libdbus-1-* | libdebconfclient0 | libexpat1 | libffi8 | libglib2.* | libicu* | liblastlog2-* | \
    libpam-modules* | libpam-runtime | libpython3* | libreadline8* | libseccomp2 | libsqlite3-0 | libstdc++6 | libsystemd-shared | \
    media-types | openssl-provider-legacy | python3* | readline-common | systemd | tzdata | udev)
    dpkg-deb --fsys-tarfile "$deb" | tar --list --quoting-style=literal | grep -v '/$' | while IFS= read -r file; do rm -f "$file"; done
    ;;
  *) dpkg-deb --field "$deb" >"var/lib/dpkg/status.d/$name" ;;
  esac
done
rm -f usr/bin/lslogins usr/sbin/update-passwd usr/sbin/xfs_scrub* usr/lib/*/xfsprogs/xfs_scrub*

# What the packages' scripts would have made, as far as anything here reads it.
cp usr/share/base-passwd/passwd.master etc/passwd
cp usr/share/base-passwd/group.master etc/group
ln -sf mawk usr/bin/awk
ln -sf /proc/self/mounts etc/mtab

# Loading md_mod from here must not change how the host starts its own arrays.
rm -rf etc/modprobe.d/mdadm.conf etc/logcheck

# Of the documentation, the licences stay.
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -type l ! -exec test -e {} \; -delete
rm -rf usr/share/man usr/share/locale usr/share/info usr/share/bash-completion usr/lib/*/gconv usr/lib/systemd usr/lib/udev \
  etc/cron.* etc/dpkg etc/fstab etc/hostname etc/resolv.conf var/log/apt
# mmdebstrap removes its own file there afterwards.
: >etc/apt/sources.list
find usr/lib/python3* usr/share usr/lib/*/ etc var/lib -depth -type d -empty -delete 2>/dev/null || true
