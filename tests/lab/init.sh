#!/bin/busybox sh
# PID 1 of a guest's initramfs: make the root file system, then hand over to guest.sh.
#
# The root is the host's, read-only over 9p, below a layer in the guest's memory: whatever the guest writes is its
# own. cache=loose is what makes Python usable: uncached, each look-up is an exchange with QEMU.
# Everything here is an applet of busybox, so nothing is read from the host yet: that is slow the first time.
set -e
mkdir -p /proc /sys /dev /host /layer /root
/bin/busybox mount -t proc proc /proc  # without which the shell does not find its applets
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module"; done </modules/order

nine=trans=virtio,version=9p2000.L,msize=512000,access=any
mount -t 9p -o "ro,cache=loose,$nine" host /host
mount -t tmpfs -o mode=0755 layer /layer
mkdir /layer/upper /layer/work /layer/checkout
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root

# /tmp and the like are the guest's own; the checkout and the folder of results keep their names, even below /tmp.
version=$(uname -r)
mkdir -p /root/proc /root/sys /root/dev "/root/lib/modules/$version"
mount --bind "/root$lab_root/.lab/kernel/lib/modules/$version" "/root/lib/modules/$version"
mount --bind "/root$lab_root" /layer/checkout
for folder in tmp run var/tmp; do mount -t tmpfs -o mode=1777 "$folder" "/root/$folder"; done
mkdir -p "/root$lab_root" "/root$lab_results" /root/tmp/home /root/run/lock
mount --bind /layer/checkout "/root$lab_root"
mkdir -p "/root$lab_results"
# cache=none, the default: host and guests see each other's writes at once.
mount -t 9p -o "$nine" results "/root$lab_results"

mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777,size=75% shm /dev/shm
mount -t devpts devpts /dev/pts
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
ip link set lo up
ulimit -l unlimited
for folder in proc sys dev; do /bin/busybox mount --move "/$folder" "/root/$folder"; done
exec /bin/busybox switch_root /root /bin/bash "$lab_root/tests/lab/guest.sh"
