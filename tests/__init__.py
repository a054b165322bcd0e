"""Test gotrace: one directory per package, Go fixtures compiled on demand."""
