# SPDX-License-Identifier: Apache-2.0
"""How long goroutines wait, by stack, reason and who ended it: begin with ``meter``.

``probes`` says what is probed, ``naming`` what addresses mean; ``states`` adds up without stacks,
in all processes of a file, ``names`` adds system calls up by name. It imports what gotrace.session
may import, and of that ``plan``, ``probing``, ``request``, ``scheduler`` and ``tasks``.
"""
