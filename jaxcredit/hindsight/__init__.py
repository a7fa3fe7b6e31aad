"""Hindsight: would I have done this, knowing what followed?"""
