"""Tests of servesim, and the tools that judge its engine: a textbook scheduler and a replay of vLLM's own steps."""
