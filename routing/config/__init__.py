"""What a dispatcher is made from, as data, and the parts that are made of it."""
