"""Trademarks composed of icons, shapes, words and colours, so that the codes of each are known: no register is needed."""
