//! The kinds of items that a server's database holds.

use clap::ValueEnum;

/// A kind of item. The variants have no doc comments, because clap would print each on its own line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ItemKind {
    #[value(name = "rules")]
    Rule,
    #[value(name = "tiers")]
    Tier,
    #[value(name = "quotas")]
    Quota,
    #[value(name = "blocks")]
    Block,
    #[value(name = "limits")]
    Limit,
    #[value(skip)]
    Key,
}

impl ItemKind {
    /// The kinds that files may hold.
    pub(crate) const IN_FILES: [ItemKind; 5] =
        [ItemKind::Rule, ItemKind::Tier, ItemKind::Quota, ItemKind::Block, ItemKind::Limit];

    /// The singular, for messages.
    pub(crate) fn noun(self) -> &'static str {
        self.plural().trim_end_matches('s')
    }

    /// The plural, in paths, responses and files.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            ItemKind::Rule => "rules",
            ItemKind::Tier => "tiers",
            ItemKind::Quota => "quotas",
            ItemKind::Block => "blocks",
            ItemKind::Limit => "limits",
            ItemKind::Key => "keys",
        }
    }

    /// The fields that identify an item among those of its kind.
    pub(crate) fn id_fields(self) -> &'static [&'static str] {
        match self {
            ItemKind::Rule | ItemKind::Tier => &["name"],
            ItemKind::Quota => &["user_id", "tenant"],
            ItemKind::Block => &["client", "tenant"],
            ItemKind::Limit => &["user_id", "endpoint", "tenant"],
            ItemKind::Key => &["id"],
        }
    }
}
