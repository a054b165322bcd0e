#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A node of Kubernetes, as process 1 of namespaces of its own: all ends with it.
#
# $1 is what tests/cluster/obtained.py has made, $2 an empty directory for all that is written, $3 the
# name of the node's control groups. Archives of images are in $2/images. The file ready says that
# pods may be made.
set -eu
made=$1 place=$2 groups=$3
root=$made/root
export PATH=$root/usr/sbin:$root/usr/bin:$made/bin:/usr/sbin:/usr/bin:/sbin:/bin

mount --make-rprivate /
mount --make-rshared /
hostname node
cd "$place"
mkdir log lib work keys logs cni plugins
# What the kubelet, the runtime and the plugins have fixed paths for.
mount --bind log /var/log
mount -t overlay overlay -o lowerdir=/var/lib,upperdir=lib,workdir=work /var/lib
mount -t tmpfs tmpfs /run
mkdir /run/netns

ip link set lo up
ip link add node type bridge
ip address add 10.77.0.1/24 dev node
ip link set node up
ip route add default via 10.77.0.2

for each in /sys/fs/cgroup/*/; do
    mkdir -p "$each$groups"
done
for each in cpus mems; do
    cat /sys/fs/cgroup/cpuset/cpuset.$each >/sys/fs/cgroup/cpuset/$groups/cpuset.$each
done

: >resolv.conf
openssl genrsa -out key 2048 2>/dev/null
openssl rsa -in key -pubout -out key.pub 2>/dev/null
echo 'admin,admin,admin,"system:masters"' >tokens
cat >kubeconfig <<END
apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: admin}}]
contexts: [{name: it, context: {cluster: it, user: admin}}]
current-context: it
END
cat >cni/pods.conflist <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods",
 "isGateway": true, "ipam": {"type": "host-local", "dataDir": "$place/addresses",
 "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
cat >containerd.toml <<END
version = 2
root = "$place/containerd"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
# Where this machine's root may not make a process safer from the OOM killer than it is itself.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$root/usr/lib/cni"
conf_dir = "$place/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "$root/usr/sbin/runc"
END

start() {
    name=$1
    shift
    "$@" >"logs/$name" 2>&1 &
}
until_it_works() {
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then
            return
        fi
        sleep 0.2
    done
    echo "$* does not work" >&2
    exit 1
}
etcd=http://127.0.0.1:2379
start etcd etcd --data-dir /run/etcd --listen-client-urls $etcd --advertise-client-urls $etcd
start containerd containerd --config containerd.toml
start kube-apiserver kube-apiserver --etcd-servers=$etcd --service-cluster-ip-range=10.96.0.0/24 \
    --advertise-address=10.77.0.1 --cert-dir=keys --token-auth-file=tokens \
    --kubelet-preferred-address-types=InternalIP \
    --authorization-mode=RBAC --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file=key.pub --service-account-signing-key-file=key \
    --allow-privileged=true
export KUBECONFIG=$place/kubeconfig
until_it_works ctr version
for image in images/*; do
    ctr -n k8s.io images import "$image"
done
until_it_works kubectl get --raw /healthz
start kube-controller-manager kube-controller-manager --kubeconfig=kubeconfig --cert-dir=keys \
    --service-account-private-key-file=key --leader-elect=false
start kube-scheduler kube-scheduler --kubeconfig=kubeconfig --cert-dir=keys --leader-elect=false
runtime=unix:///run/containerd/containerd.sock
start kubelet kubelet --kubeconfig=kubeconfig --cert-dir=keys --root-dir="$place/kubelet" \
    --container-runtime=remote --container-runtime-endpoint=$runtime \
    --cgroup-driver=cgroupfs --cgroup-root="/$groups" --fail-swap-on=false --eviction-hard= \
    --oom-score-adj=0 --resolv-conf="$place/resolv.conf" --cluster-dns=10.96.0.10 \
    --volume-plugin-dir="$place/plugins" --node-ip=10.77.0.1 --hostname-override=node
until_it_works kubectl wait --for=condition=Ready node/node --timeout=1s
until_it_works kubectl -n default get serviceaccount default
touch ready
wait
