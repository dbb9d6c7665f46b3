"""The live page and its feed: what a server does right now, in pictures; of `serve`, of `loadgen`, of any `/metrics`.

It does not know how a step is scheduled nor how a metric is named by whom: it shows figures that others have.
"""
