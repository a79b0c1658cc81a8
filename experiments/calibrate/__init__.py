"""What a card really does, beside what its data sheet and an ahead-of-time compile say.

Command, on any machine with one GPU (on one without, its CPU in a short form):
    make card

Under ten minutes; stopped and started again it goes on where it was. Needs no network.
Every job has a process of its own, so that none inherits another's memory.
"""
