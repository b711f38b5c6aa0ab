#!/bin/bash
# PID 1 of a guest, after init.sh: bring up what was asked for, run the command, tell its exit code.
#
# Port `control`: one line comes in (bash assignments in base64, made by farpool_lab/machine.py), and lines go out:
# "up" before the command, then "exit CODE", or "fail WHY". What is printed here goes to the serial console.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp/home LANG=C.UTF-8
cxl_bus=/sys/bus/cxl/devices
declare -A ports

say() {
    local uptime
    read -r uptime _ </proc/uptime
    echo "[$uptime] lab: $*"
}

fail() {
    say "FAIL: $*"
    dmesg | tail -n 40
    echo "fail $*" >&9
    exec sleep infinity
}

# Evaluate a test until it holds, for 60 s at most: much here comes up a moment after the call that asked for it.
wait_for() {
    local _
    for _ in {1..600}; do
        eval "$1" && return
        sleep 0.1
    done
    return 1
}

# Set ports[NAME], the devices of virtio-serial.
find_ports() {
    local folder name
    for folder in /sys/class/virtio-ports/*; do
        { read -r name <"$folder/name"; } 2>/dev/null && ports[$name]=/dev/${folder##*/}
    done
    [[ ${ports[control]:-} && ${ports[stdout]:-} && ${ports[stderr]:-} ]]
}

network() {
    modprobe virtio_net || return
    wait_for 'netdev=$(ls /sys/bus/virtio/drivers/virtio_net/virtio*/net 2>/dev/null)' || return
    link_up
}

link_up() {
    ip link set "$netdev" mtu 9000 && ip addr add "$LAB_IP/24" dev "$netdev" && ip link set "$netdev" up
}

rdma_up() {
    local gids=/sys/class/infiniband/rxe0/ports/1/gids
    modprobe -a rdma_rxe rdma_ucm ib_uverbs || return
    if [[ -z ${netdev:-} ]]; then
        netdev=lab0
        modprobe dummy && ip link add lab0 type dummy && link_up || return
    fi
    rdma link add rxe0 type rxe netdev "$netdev" || return
    wait_for '[[ -c /dev/infiniband/uverbs0 ]] && grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state' || return
    wait_for "grep -qi 0000:ffff: $gids/* 2>/dev/null" || return
    LAB_GID_INDEX=$(grep -li 0000:ffff: $gids/* 2>/dev/null | head -n 1)
    export LAB_RDMA_DEV=rxe0 LAB_GID_INDEX=${LAB_GID_INDEX##*/}
}

cxl_pmem() {
    modprobe -a cxl_acpi cxl_pci cxl_mem cxl_pmem nd_pmem device_dax dax_pmem || return
    wait_for "compgen -G '$cxl_bus/endpoint*' >/dev/null && [[ -e $cxl_bus/nvdimm-bridge0 ]]" || return
    wait_for 'cxl create-region -m -t pmem -d decoder0.0 -w 1 -s "$cxl_bytes" mem0' || return
    wait_for '[[ -e /sys/bus/nd/devices/region0 ]]' || return
    wait_for 'ndctl create-namespace -m devdax -M mem -r region0'
}

# By sysfs: cxl-cli 76 of Debian 12 knows no volatile regions.
cxl_volatile() {
    local endpoint decoder region root=$cxl_bus/decoder0.0
    modprobe -a cxl_acpi cxl_pci cxl_mem device_dax dax_cxl || return
    wait_for "compgen -G '$cxl_bus/endpoint*' >/dev/null" || return
    endpoint=$(basename $cxl_bus/endpoint*)
    decoder=$cxl_bus/decoder${endpoint#endpoint}.0
    region=$(cat $root/create_ram_region) || return
    echo "$region" >$root/create_ram_region && echo 1 >"$cxl_bus/$region/interleave_ways" &&
        echo 256 >"$cxl_bus/$region/interleave_granularity" && echo "$cxl_bytes" >"$cxl_bus/$region/size" &&
        echo ram >"$decoder/mode" && echo "$cxl_bytes" >"$decoder/dpa_size" &&
        echo "${decoder##*/}" >"$cxl_bus/$region/target0" && echo 1 >"$cxl_bus/$region/commit" &&
        echo "$region" >/sys/bus/cxl/drivers/cxl_region/bind || return
    wait_for '[[ -e /sys/bus/dax/devices/dax0.0 ]]' || return
    [[ -e /sys/bus/dax/devices/dax0.0/driver ]] || echo dax0.0 >/sys/bus/dax/drivers/device_dax/new_id
}

cxl_nvdimm() {
    modprobe -a nfit nd_pmem device_dax dax_pmem || return
    wait_for '[[ -e /sys/bus/nd/devices/region0 ]]' || return
    wait_for '[[ -c /dev/dax0.0 ]] || ndctl create-namespace -f -e namespace0.0 -m devdax -M mem'
}

cxl_up() {
    "cxl_$cxl_kind" && wait_for '[[ -c /dev/dax0.0 ]]' || return
    # A server that is told nothing else keeps its slabs there.
    export LAB_DAX=/dev/dax0.0 LAB_DAX_SIZE FARPOOL_ARENA=/dev/dax0.0
    LAB_DAX_SIZE=$(cat /sys/bus/dax/devices/dax0.0/size)
}

# End what the command has left running, which may hold its output open; not the two that carry the output.
# A kernel thread has no command line. Each process that bash would start here costs a tenth of a second.
end_the_rest() {
    local folder pid line
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/} line=
        [[ $pid == "$$" || $pid == "$1" || $pid == "$2" ]] && continue
        { read -r -d '' line <"$folder/cmdline"; } 2>/dev/null
        [[ -z $line ]] || kill -KILL "$pid" 2>/dev/null
    done
}

run() {
    local code out err stdout stderr
    exec {stdout}> >(exec cat >"${ports[stdout]}")
    out=$!
    exec {stderr}> >(exec cat >"${ports[stderr]}")
    err=$!
    cd "$folder" || fail "no folder $folder"
    echo up >&9
    say "running the command"
    (exec 9>&-; exec setsid "${command[@]}") <&- </dev/null >&"$stdout" 2>&"$stderr" {stdout}>&- {stderr}>&-
    code=$?
    say "the command ended: $code"
    exec {stdout}>&- {stderr}>&-
    end_the_rest "$out" "$err"
    wait "$out" "$err"
    sync
    echo "exit $code" >&9
    exec sleep infinity
}

wait_for find_ports
exec 9<>"${ports[control]}"
read -r line <&9
eval "$(base64 -d <<<"$line")"
say "guest $LAB_NAME is up"
if [[ -n $wire ]]; then network || fail "no network"; fi
if [[ -n $rdma ]]; then rdma_up || fail "no rdma device"; say "$LAB_RDMA_DEV, gid $LAB_GID_INDEX"; fi
if [[ -n $cxl_kind ]]; then cxl_up || fail "no /dev/dax0.0 ($cxl_kind)"; say "$LAB_DAX, $LAB_DAX_SIZE bytes, $cxl_kind"; fi
run
