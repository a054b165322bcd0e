# SPDX-License-Identifier: Apache-2.0
"""Check which of Debian's packages are taken for a kernel."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.debian import FetchError, parse_records
from tests.kernels.releases import QUICK, RELEASES, choose, release


def image(name: str, version: str, *depends: str) -> Mapping[str, str]:
    package = f"linux-image-{name}-cloud-amd64"
    return {"Package": package, "Version": version, "Depends": ", ".join(("kmod", *depends))}


def part(kind: str, name: str) -> Mapping[str, str]:
    return {"Package": f"linux-{kind}-{name}-cloud-amd64", "Version": "1"}


def parts(name: str) -> tuple[str, ...]:
    return tuple(f"linux-{kind}-{name}-cloud-amd64 (= 1)" for kind in ("base", "binary", "modules"))


OLD = [
    image("6.18.9+deb13", "6.18.9-1~bpo13+1"),
    image("6.18.15+deb13", "6.18.15-1~bpo13+1"),
    image("6.17.13+deb13", "6.17.13-1~bpo13+1"),
    {"Package": "linux-image-cloud-amd64", "Version": "7.3.4-1"},
    {"Package": "linux-image-6.18.15+deb13-cloud-amd64-dbg", "Version": "6.18.15-1~bpo13+1"},
    {"Package": "linux-image-6.18.16+deb13-amd64", "Version": "6.18.16-1~bpo13+1"},
]


def test_newest_of_a_series_by_number() -> None:
    chosen = choose(OLD, "6.18.")
    assert chosen.version == "6.18.15-1~bpo13+1"
    assert chosen.names == ("linux-image-6.18.15+deb13-cloud-amd64",)


def test_kernel_in_several_packages() -> None:
    new = image("7.3.4+deb13", "7.3.4-1~bpo13+1", *parts("7.3.4+deb13"))
    whole = [part("binary", "7.3.4+deb13"), part("modules", "7.3.4+deb13")]
    assert choose([*OLD, new, *whole], "").names == (
        "linux-image-7.3.4+deb13-cloud-amd64",
        "linux-binary-7.3.4+deb13-cloud-amd64",
        "linux-modules-7.3.4+deb13-cloud-amd64",
    )


def test_kernel_of_which_a_part_is_gone_is_passed_over() -> None:
    new = image("7.1.13+deb13", "7.1.13-1~bpo13+1", *parts("7.1.13+deb13"))
    assert choose([*OLD, new, part("binary", "7.1.13+deb13")], "").version == "6.18.15-1~bpo13+1"


def test_series_that_a_suite_does_not_have() -> None:
    with pytest.raises(FetchError, match=r"no package of a whole cloud-amd64 kernel 5\.10\."):
        choose(OLD, "5.10.")


def test_names_of_guests() -> None:
    assert {name: release(name).name for name in QUICK} == {name: name for name in QUICK}
    with pytest.raises(FetchError, match=r"no guest of kernel '6.2': choose from 5\.10, 6\.1, "):
        release("6.2")


def test_preemptible_guests_have_two_processors() -> None:
    assert {one.name for one in RELEASES if one.cpus == 2} == {
        *("6.18", "newest", "newest-128", "6.18-arm64", "newest-arm64", "newest-arm64-128")
    }


def test_control_files_with_folded_fields() -> None:
    text = "Package: a\nDepends: b,\n c\nSize: 1\n\n\nPackage: d\n"
    assert parse_records(text) == [
        {"Package": "a", "Depends": "b,", "Size": "1"},
        {"Package": "d"},
    ]
