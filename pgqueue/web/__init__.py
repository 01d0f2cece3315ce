"""The operator's page: `pgqueue web`, or mounted in an app of your own. Needs the extra `web`.

    from pgqueue import web

    app.mount("/pgqueue", web.create("postgresql://…", authorize=who))   # FastAPI, Starlette

    async def who(request):                     # None: nobody; they are sent away with 401
        user = await current_user(request)
        return web.Viewer(user.email, may_act=user.is_operator) if user else None

Who may not act is served by the database role pgqueue_reader in a read-only transaction, whatever the request says.
"""

from pgqueue.web.access import Authorize, Viewer
from pgqueue.web.app import create

__all__ = ["Authorize", "Viewer", "create"]
