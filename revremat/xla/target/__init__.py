"""The machine to compile for, and what a program may ask of it."""
