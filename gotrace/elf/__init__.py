"""Read Go executables: bytes in, dataclasses out."""
