"""What the compiler made: targets, compiles, liveness and time."""
