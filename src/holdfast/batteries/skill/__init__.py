"""skill: stored, versioned procedures that any agent may call as a tool, as a child run."""

from holdfast.batteries.skill.errors import SkillError
from holdfast.batteries.skill.skill import Parameter, Skill, Skills, SkillSource, export_skill, import_skill

__all__ = ["Parameter", "Skill", "SkillError", "SkillSource", "Skills", "export_skill", "import_skill"]
