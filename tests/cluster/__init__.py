# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes of one node on this machine, for ``make test-cluster``.

Everything is Debian's, unpacked and not installed: etcd, containerd, runc, the plugins for networks
and kubectl as packages; the API server, the controllers, the scheduler and the kubelet are built of
the source package, which has their dependencies. ``obtained`` gets them, ``node`` starts them.
"""
