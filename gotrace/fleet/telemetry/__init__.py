# SPDX-License-Identifier: Apache-2.0
"""What is measured of programs as a whole: waits. Begin with ``waits``.

It imports what gotrace.fleet may import, and of that ``config``, ``probing`` and ``targets``.
"""
