"""Trademarks composed of icons, shapes, words and colours, so that the codes of each are known without a register."""
