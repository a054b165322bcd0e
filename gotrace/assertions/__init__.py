# SPDX-License-Identifier: Apache-2.0
"""Assertions: how often functions are called, in a run or for each call of a root.

A line of text (``grammar``) becomes probes (``plan``), and what is seen of them a verdict
(``verdicts``).
"""
