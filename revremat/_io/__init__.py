"""What is read and written: files, JSON, types of what was read, notebooks."""
