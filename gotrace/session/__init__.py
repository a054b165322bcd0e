"""Load BPF programs, attach them, and follow the target; the only package that imports bcc."""
