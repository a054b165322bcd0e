# SPDX-License-Identifier: Apache-2.0
"""Measurements of whole programs and their processes: waits and profiles.

Begin with ``waits``; ``price`` counts what that would cost. It imports what gotrace.fleet may
import, and of that ``config``, ``probing``, ``targets`` and, for the names of profiles, ``web``.
"""
