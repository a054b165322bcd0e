# SPDX-License-Identifier: Apache-2.0
"""Stacks with numbers, in the formats that other tools show, and as pages that show themselves.

May import: ``errors``, ``text``, and of ``gotypes`` what waits are called. Start reading at
``rows``, what every tool hands in; ``write`` lists the forms, a module each.
"""
