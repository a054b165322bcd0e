# SPDX-License-Identifier: Apache-2.0
"""The kernel's side: compile, load, attach, read maps. Only this package imports bcc.

May import: all before it in docs/design.md's table. Start reading at ``program.Program``
(compiled and loaded), ``attach.attach`` (probes in place).
"""
