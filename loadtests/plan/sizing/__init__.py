"""What fleets come to by formulas: utilisation, waits, times per token, KV."""
