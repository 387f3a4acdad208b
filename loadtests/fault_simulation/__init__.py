"""Random faults in virtual time: what must hold whatever goes wrong, and the shortest script in which it does not."""
