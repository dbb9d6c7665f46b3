"""How much load, which servers, how many: grids, searches and plans over simulated runs."""
