#!/bin/busybox sh
# The guest's first process: loads the modules, puts a writable layer over the host's root, and runs /checks in there.
/bin/busybox --install -s /bin
export PATH=/bin

fail() {
    echo "vm: broken $*"
    poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
    insmod "/modules/$module" || fail "cannot load $module"
done < /modules/order

mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /host || fail "no root over 9p"
mount -t tmpfs tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /root || fail "no overlay"
for folder in proc sys dev; do
    mount --move "/$folder" "/root/$folder"
done
mkdir -p /root/dev/shm
mount -t tmpfs tmpfs /root/dev/shm
mount -t tmpfs tmpfs /root/run
cp /checks /root/run/checks
ulimit -l unlimited
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    chroot /root /bin/sh /run/checks
# The console is slower than the power switch.
sleep 1
poweroff -f
