# SPDX-License-Identifier: Apache-2.0
"""Configurations: what is accepted, and where and how everything else is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gotrace.errors import UsageError
from gotrace.fleet.config import Buckets, Listen, MetricType, Protocol, load_config, parse_config

SMALLEST = """\
listen: 127.0.0.1:9435
targets: [{name: shop, exe: /usr/local/bin/shop}]
metrics:
  - {name: store_get, type: counter, probe: 'main.(*Store).Get', labels: {failed: '$ret2 != nil'}}
  - {name: store_get_seconds, type: histogram, probe: 'main.(*Store).Get'}
spans:
  - {probe: 'main.(*Store).Get', attributes: {key: key}, rate: 10/s}
otlp: {endpoint: 'http://127.0.0.1:4318', protocol: http}
budget: 2%
"""


def test_smallest_configuration() -> None:
    config = parse_config("c.yaml", SMALLEST)
    assert config.listen == Listen("127.0.0.1", 9435)
    assert [(target.name, target.exe) for target in config.targets] == [
        ("shop", "/usr/local/bin/shop")
    ]
    counter, histogram = config.metrics
    assert (counter.type, counter.labels) == (MetricType.COUNTER, ("failed",))
    assert counter.key is not None and counter.key.texts == ("$ret2 != nil",)
    assert (histogram.type, histogram.key, histogram.targets) == (
        *(MetricType.HISTOGRAM, None),
        ("shop",),
    )
    assert config.spans[0].attributes == (("key", "key"),)
    assert config.spans[0].rate == 10
    assert config.otlp is not None and config.otlp.protocol is Protocol.HTTP
    assert config.budget == 0.02


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("type: counter", "type: count", 4, "give one of counter, histogram"),
        ("probe: 'main.(*Store).Get', l", "prob: 'main.f', l", 4, "unknown key 'prob'"),
        ("budget: 2%", "budgets: 2%", 9, "unknown key 'budgets': did you mean budget or"),
        ("$ret2 != nil", "$ret2 !! nil", 4, "column 7"),
        ("'main.(*Store).Get'}", "'main.(*Store).Get (n <'}", 5, "column"),
        ("'main.(*Store).Get'}", "'/bin/sh:main.f'}", 5, "list the file among"),
        ("'main.(*Store).Get'}", "'main.f \"%v\", n'}", 5, "a metric takes no format"),
        ("budget: 2%", "budget: 200%", 9, "a part of one CPU"),
        ("10/s", "10 a second", 7, "a rate is as in 10/s"),
        ("127.0.0.1:9435", "localhost", 1, "an address to listen on"),
        ("127.0.0.1:9435", "127.0.0.1:94350", 1, "port 94350 is above 65535"),
        ("exe: /usr", "exe: usr", 2, "is not an absolute path"),
        ("exe: /usr/local/bin/shop", "label: a", 2, "unknown key 'label'"),
        (", exe: /usr/local/bin/shop", "", 2, "a target is an exe"),
        ("exe: /usr", "kubernetes: {label: app}, exe: /usr", 2, "unknown key 'label'"),
        ("exe: /usr", "kubernetes: {pod: web}, cgroup: /usr", 2, "give cgroup or kubernetes"),
        ("exe: /usr", "comm: shop, exe: /usr", 2, "give exe or comm, not both"),
        ("failed: ", "le: ", 4, "'le' cannot be a label"),
        ("failed: ", "target: ", 4, "'target' cannot be a label"),
        ("name: store_get_seconds", "name: store_get", 5, "'store_get' is there twice"),
        ("name: store_get,", "name: store_get_total,", 4, "_total is added: call it 'store_get'"),
        ("name: store_get,", "name: store-get,", 4, "is not a metric's name"),
        ("name: store_get,", "name: gotraced_x,", 4, "reserved for gotraced"),
        ("budget: 2%", "budget: 2%\nbudget: 3%", 10, "'budget' is there twice"),
        ("{name: shop,", "&x {name: shop,", 2, "anchors and aliases are not supported"),
        (
            "listen: 127.0.0.1:9435",
            "listen: !!python/name:os.system",
            1,
            "os.system is not supported: plain values only",
        ),
        (
            "rate: 10/s",
            "rate: 10/s, targets: [shp]",
            7,
            "no target is named 'shp': did you mean shop?",
        ),
        (
            "otlp: {endpoint: 'http://127.0.0.1:4318', protocol: http}\n",
            "",
            7,
            "spans are sent by OTLP: give otlp an endpoint",
        ),
        ("'http://127.0.0.1:4318'", "127.0.0.1:4318", 8, "an endpoint is as in"),
        ("budget: 2%", "? [a]\n: b", 9, "a key is a word"),
        ("budget: 2%", "idle: 1ms", 9, "'1ms': give 1s to 720h, or 0 for never"),
        ("listen: 127.0.0.1:9435", "hosts: [a]", 1, "hosts is about listen: give one"),
        (
            "failed: ",
            "".join(f"a{n}: key, " for n in range(16)) + "failed: ",
            4,
            "more than 16 expressions",
        ),
        ("budget: 2%", "budget: [2%", 10, "this is not YAML"),
        ("type: counter", "type: counter, of: n", 4, "of is for histograms"),
        ("type: histogram", "type: histogram, buckets: {from: 1s, to: 1ms}", 5, "a larger last"),
        ("type: histogram", "type: histogram, series: 0", 5, "minimum"),
        ("failed: '$ret2 != nil'", "failed: 'a, b'", 4, "give one expression"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    before: str, after: str, line: int, words: str
) -> None:
    assert before in SMALLEST
    with pytest.raises(UsageError) as caught:
        parse_config("c.yaml", SMALLEST.replace(before, after, 1))
    message = str(caught.value)
    assert message.startswith(f"c.yaml, line {line}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", ["", "[" * 1000, "a: *b", "x", "- 1", "\x00", "? [a]: b", "a: 1\n"]
)
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^c\.yaml, line "):
        parse_config("c.yaml", text)


@pytest.mark.parametrize(
    ("buckets", "bounds"),
    [
        (Buckets(1_000, 5_000), [512, 1024, 2048, 4096, 8192]),
        (Buckets(1, 8), [1, 2, 4, 8]),
        (Buckets(16, 32, 4), [16, 20, 24, 28, 32]),
        (Buckets(1 << 20, 1 << 21, 2), [1 << 20, 3 << 19, 1 << 21]),
    ],
)
def test_bounds_of_buckets(buckets: Buckets, bounds: list[int]) -> None:
    assert buckets.bounds() == bounds


def test_files_that_others_could_have_written_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(SMALLEST)
    path.chmod(0o644)
    assert load_config(str(path)).targets
    path.chmod(0o646)
    with pytest.raises(UsageError, match="every user may write to it: chmod o-w"):
        load_config(str(path))
    with pytest.raises(UsageError, match="it is not a file"):
        load_config(str(tmp_path))
    with pytest.raises(UsageError, match=r"cannot read the configuration .*: No such file"):
        load_config(str(tmp_path / "none"))
    path.chmod(0o600)
    path.write_bytes(b"listen: \xff")
    with pytest.raises(UsageError, match=r"configuration .* is not UTF-8: byte 8"):
        load_config(str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away takes root")
def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(SMALLEST)
    os.chown(path, 12345, 0)
    with pytest.raises(UsageError, match="user 12345 owns it"):
        load_config(str(path))
    os.chown(path, 0, 12345)
    path.chmod(0o664)
    with pytest.raises(UsageError, match="group 12345 may write to it"):
        load_config(str(path))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="it is not a file"):
        load_config(str(path))
