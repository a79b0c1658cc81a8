"""What jobs do, each in a process of its own."""
