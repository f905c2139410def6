"""Sites on separate machines: server, site and key holder."""

PARTS = {
    "sites": {
        "agreed_clients": "sordino.sites.serve:agreed_clients",
        "elsewhere": "sordino.sites.elsewhere",
    },
    "verbs": {
        "serve": "sordino.sites.commands:serve",
        "join": "sordino.sites.commands:join",
        "hold-key": "sordino.sites.commands:hold_key",
        "data announce": "sordino.sites.commands:announce",
        "data agree": "sordino.sites.commands:agree",
        "identity": "sordino.sites.identity_commands:app",
        "certificates": "sordino.sites.identity_commands:certificates",
    },
}
