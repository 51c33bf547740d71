"""Front-end protocols: AG-UI and the Vercel AI SDK, for conversations. Needs the extra `front-ends`."""
