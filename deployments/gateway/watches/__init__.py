"""What ends when it stands still: a policy that does not return, and a gateway whose event loop does not go round."""
