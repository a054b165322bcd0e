# SPDX-License-Identifier: Apache-2.0
"""The commands: options to a request, session to report.

May import: all other packages. Start reading at the module of the command's name; ``options``
and ``run`` for what they share.
"""
