"""A scenario in virtual time: its runs, their verdict, and what is kept of them."""
