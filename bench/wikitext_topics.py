"""Sections of wikitext-2 with several topics each, made from the headings of their articles."""

from __future__ import annotations

import json
from pathlib import Path

TOPICS = {
    "person": ("life", "career", "personal", "legacy", "youth", "childhood"),
    "music": ("track", "chart", "music", "composition", "recording", "album", "tour"),
    "film or series": ("plot", "cast", "filming", "casting", "production", "episode", "broadcast"),
    "game": ("gameplay", "development", "setting"),
    "war": ("war", "battle", "armament", "campaign", "operations", "aftermath", "squadron"),
    "nature": ("distribution", "taxonomy", "ecology", "habitat", "behaviour", "diet", "breeding"),
    "storm": ("meteorological", "impact", "preparations"),
    "reception": ("reception", "critical", "awards", "accolades", "reviews"),
    "place or road": ("route", "geography", "climate", "demographics", "architecture", "station"),
    "season": ("season", "match", "club", "schedule", "regular"),
}
"""What an article is about, by words of its headings; several may apply."""


def wikitext_topics(data: Path, work: Path) -> None:
    """The first lines of each section of wikitext with the topics of the article's headings."""
    for name, file in (("train", "valid.txt"), ("test", "test.txt")):
        articles = _articles((data / "wikitext-2" / file).read_text("utf-8").splitlines())
        rows = [
            {"text": text, "topics": topics}
            for headings, texts in articles
            if (topics := [t for t, words in TOPICS.items() if not headings.isdisjoint(words)])
            for text in texts
        ]
        rows = rows[::3] if name == "test" else rows
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (work / f"{name}.jsonl").write_text("".join(lines), "utf-8")


def _articles(lines: list[str]) -> list[tuple[set[str], list[str]]]:
    """Of each article, the words of its headings, and the first line of each section."""
    found: list[tuple[set[str], list[str]]] = []
    begins = False
    for line in (each.strip() for each in lines):
        if line.startswith("= ") and not line.startswith("= ="):
            found.append((set(), []))
            begins = True
        elif line.startswith("= =") and found:
            found[-1][0].update(line.lower().split())
            begins = True
        elif line and begins and found:
            found[-1][1].append(line)
            begins = False
    return found
