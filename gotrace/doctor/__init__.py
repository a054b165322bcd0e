# SPDX-License-Identifier: Apache-2.0
"""What tracing needs on this machine and of one program, examined.

May import: all before it in docs/design.md's table. Start reading at ``examine``.
"""
