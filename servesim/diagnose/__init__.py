"""What binds a server and which knob to turn, from its metric pages, reports or runs."""
