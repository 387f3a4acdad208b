"""Who asks for what, and when: arrivals, lengths, conversations, traces, and clients that try again."""
