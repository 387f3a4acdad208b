"""What somebody else would write: a balancer and a lane classifier, and the files that name them."""
