# SPDX-License-Identifier: Apache-2.0
"""gotrace as a library: attach, then iterate over calls, count them or measure them.

Provisional: names may change until the first release. docs/api.md shows the use. Nothing here
handles signals or prints; it works in any thread, and several sessions at once.
"""
