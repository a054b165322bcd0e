# SPDX-License-Identifier: Apache-2.0
"""Go releases that changed facts on which gotrace relies, each as (major, minor).

The fields that a release moved within a structure are in tables beside the code that reads them:
CONTRIBUTING.md, "Support a new Go release", lists them.
"""

from __future__ import annotations

Release = tuple[int, int]

#: The newest release whose sources were read and whose programs are tested. Later ones are taken
#: to be like it, with a warning where an address depends on it.
NEWEST: Release = (1, 27)

#: A generic method's dictionary comes after the receiver, before it in 1.18 and 1.19: ``shapeSig``
#: in src/cmd/compile/internal/noder/reader.go, the compiler's unified front end.
DICTIONARY_AFTER_RECEIVER: Release = (1, 20)

#: The compiler describes the words of arguments for tracebacks (FUNCDATA_ArgInfo).
SHAPES_LISTED: Release = (1, 17)

#: The compiler lists blank and unnamed parameters in DWARF, as ``~p0`` and so on.
ALL_PARAMETERS_LISTED: Release = (1, 22)

#: Maps are swiss tables (src/internal/runtime/maps); before, and up to 1.25 with
#: GOEXPERIMENT=noswissmap, they have buckets.
SWISS_MAPS: Release = (1, 24)

#: Labels of goroutines are a list (labelMap in src/runtime/pprof/label.go); before, a map.
LABEL_LISTS: Release = (1, 24)

#: An interface also holds directly a type that is one pointer and fields without size
#: (``IsDirectIface`` in src/cmd/compile/internal/types/type.go).
DIRECT_INTERFACES_BY_SIZE: Release = (1, 26)
