# SPDX-License-Identifier: Apache-2.0
"""Where a process's threads spend CPU time, sampled: begin with ``meter``.

``naming`` says what the addresses mean; ``wall`` adds the time of all states of goroutines up
beside it. It imports what gotrace.session may import, and of that
``frames``, ``plan``, ``probing``, ``request``, ``tasks`` and ``waits``.
"""
