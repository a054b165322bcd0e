# SPDX-License-Identifier: Apache-2.0
"""Stacks with numbers, in the formats that other tools show, and as pages that show themselves.

May import: ``errors`` and ``text`` alone. Start reading at ``rows``, what every tool hands in;
``write`` lists the forms, a module each.
"""
