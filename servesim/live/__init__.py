"""The live page and its feed: what a server does right now, in charts; of `serve`, of `loadgen`, of any `/metrics`.

It does not know how a step is scheduled, nor how a server names its metrics: it shows what its sources report.
"""
